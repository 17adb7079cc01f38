"""Scores of heatmaps, from their definitions, image by image and step by step."""
