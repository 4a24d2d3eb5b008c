"""Tests of kubectl gpu-transition."""
