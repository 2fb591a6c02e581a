"""What an operator is: its schema, its layouts, its signatures. The ground of the torch device."""
