"""Tables to unique, checked sequences with keys.

Promises that the same chains get the same key whatever their row, file or order, and that nothing
is cut, dropped or merged without being refused or counted.
"""
