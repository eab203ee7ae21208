"""The plug-ins that come with feedrate. Each imports the core; none imports another."""
