// Package sessions has the commands about recorded sessions. sessions.go talks to the API of
// recordings, play.go shows one on the terminal.
package sessions
