"""The public Python behind `import cdmpp`: what the commands call too."""
