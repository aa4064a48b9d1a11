"""Options of ``fit``, the models of pairs, and the registry that names them."""
