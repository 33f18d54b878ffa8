"""Inputs: what a graph takes, and families of inputs that give each kind of mistake somewhere to show."""
