"""Between the stages: encoders adapted to measured affinities, then frozen again."""
