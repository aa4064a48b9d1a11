"""Stage two: stored vectors and labels to a predictor. Knows no residues."""
