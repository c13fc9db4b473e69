"""Runs any task from any recipe; measures models and holds them against the papers' tables."""
