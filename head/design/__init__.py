"""From a predictor to designs: single mutants of an antibody, and lists to order."""
