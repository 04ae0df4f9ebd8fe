"""`kubectl kvasir support-bundle`: what is needed to look into a problem, without secrets."""
