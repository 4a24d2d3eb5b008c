"""Tests of the engine on stateful fakes."""
