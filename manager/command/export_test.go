package command

var (
	PathsOf        = pathsOf
	FlagsOfOptions = flagsOfOptions
)
