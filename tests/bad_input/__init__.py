"""What users get wrong, and what strangers try: one row per case, in a table per area.

``tests/test_bad_input.py`` runs every row of every ``CASES`` in the modules of this folder. A new case is one line.
"""
