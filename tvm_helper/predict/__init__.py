"""Predictions for programs and modules: seconds with an interval and an explanation."""
