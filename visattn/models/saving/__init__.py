"""Saving and loading models; begin with :mod:`visattn.models.saving.saved`."""
