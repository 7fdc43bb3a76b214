// Package audit shows audit records. audit.go is the command; compare.go finds what the audit
// log of the API server has and no record tells.
package audit
