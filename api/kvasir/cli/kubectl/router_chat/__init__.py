"""`kubectl kvasir chat`: a conversation through a cluster's router."""
