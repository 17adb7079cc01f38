"""What visattn adds to timm's registry.

timm calls a group of models by the file that registers them, so the file for ``timm.list_models(module="visattn")`` is
``visattn.py``.
"""
