"""Encoders: packed token ids to one vector per token.

`families` lists the encoder families; `loading` identifies and loads an encoder by name. A family
has a packed implementation, transformers' module as the reference, or both.
"""
