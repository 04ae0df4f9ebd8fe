"""Who may send requests, how many, and who is served first when there is no room."""
