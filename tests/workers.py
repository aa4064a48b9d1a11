"""What workers of a test do; processes that are spawned import it."""

from drawn import COMPOSITION

import abag


def predict_part(run, store, part):
    """Predict into one store, as each worker does; return the predictions and the vectors."""
    scored = abag.predict(part, run, store=store, say=False)
    opened = abag.open_store(store)
    vectors = opened.vectors("antigen", part["antigen"].tolist())
    return scored["pkd_predicted"].tolist(), vectors


def embed_part(store, part):
    abag.embed_table(part, store, say=False, **COMPOSITION)
