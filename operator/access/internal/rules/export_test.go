package rules

// CountsFor is countsFor, for tests that need facts, which are above this package.
var CountsFor = countsFor
