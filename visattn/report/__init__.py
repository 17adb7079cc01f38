"""Figures and the HTML page."""
