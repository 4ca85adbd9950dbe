"""Spatial parallelism: convolutional nets on images of which each rank has a strip of rows (GEMS).

`api` has the function for users, `net` the module that it returns, `strip` the tensor that a net gets in the place of
an image, with a table of the functions of PyTorch that have a rule. The other files have the rules, on three
foundations: `layout` computes which rows a rank needs, `exchange` brings these rows from other ranks, `windowed`
differentiates a function of them.

Source: Jain et al., "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training", SC 2020.
"""
