"""What other libraries use of abag: datasets for own models, and scikit-learn's objects."""
