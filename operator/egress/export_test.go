package egress

// FormatEndpoints and ParseEndpoints write and read the annotation [AnnotationAPIServer].
var (
	FormatEndpoints = formatEndpoints
	ParseEndpoints  = parseEndpoints
)
