"""HTTP: the door and the exit of the house. Knows no tensor library and no model's inside."""
