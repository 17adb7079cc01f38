"""Saving and loading models; :mod:`~visattn.models.saving.saved` is where to begin.

===============  =====================================================================
``saved``        save a model to a folder; load one from a folder, a checkpoint or a name
``rebuilding``   from a card and weights to the model
``description``  from a model to words and back: its arguments and attachments
``card``         the schema of ``model.json``, made of ``checks``
``weights``      reading files of weights without running code
``state``        ``load_state_dict`` between plain networks and networks with blocks
===============  =====================================================================
"""
