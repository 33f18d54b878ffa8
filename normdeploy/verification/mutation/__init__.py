"""Deliberate errors: could the checks have failed?"""
