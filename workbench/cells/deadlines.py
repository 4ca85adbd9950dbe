"""Deadlines of the steps between the request for a cell and its begin, in seconds.

The first cell starts the engines, which takes a second on an idle machine and minutes on a loaded one. A step has a
shorter deadline than the request that contains the step, so that the error names the step.
"""

REGISTER = 120.0
"""For an engine to start and to register with its controller."""
MEET = 120.0
"""For all ranks of a cell to begin."""
CONTROLLER = 120.0
"""For the controller to print its connections."""
ANSWER = 150.0
"""For a rank to answer to a step of the preparation of a cell."""
ENGINES = 330.0
"""For the head to start the engines of a world: two requests to the ranks, during the first also the controller."""
REACH = 60.0
"""For the controller and the engines to answer to a notebook the first time."""
