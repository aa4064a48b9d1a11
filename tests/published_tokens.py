"""Token ids of the two default encoders as their authors published them."""

TOKENS = {  # before the residues, the residues, after them
    "tiny-igt5": ((), dict(enumerate("ALGVSREDTIPKFQNYMHWCX", 3)), 1),
    "tiny-esm2": ((0,), dict(enumerate("LAGVSERTIDPKQNFYMHWCX", 4)), 2),
}


def published_ids(name, text):
    """Return the ids of residues and other tokens, given with spaces between them."""
    start, letters, end = TOKENS[name]
    at = {letter: i for i, letter in letters.items()} | {"</s>": 1}
    return [*start, *(at[word] for word in text.split()), end]
