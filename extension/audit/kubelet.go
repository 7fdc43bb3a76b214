package audit

import "regexp"

// harmlessPath matches the paths below nodes/proxy that open no session: what is
// scraped and looked at. Everything else is taken for a way in, so that a
// kubelet newer than this list, and a path that is written in a way that some
// server on the way reads otherwise, is refused rather than let through. It is
// RE2, in Go and in CEL alike.
const harmlessPath = `^/*((metrics|stats|healthz|pods|runningpods|configz|spec|logs|containerLogs|flagz|statusz)(/[A-Za-z0-9_:-][A-Za-z0-9_.:-]*)*/?)?$`

var harmless = regexp.MustCompile(harmlessPath)
