"""The setup of neuron-top: dialogs in which columns, order, theme, pages, devices and thresholds are chosen."""
