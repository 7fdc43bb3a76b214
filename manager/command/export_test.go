package command

var FlagsOfOptions = flagsOfOptions
