package access

import "github.com/admitkit/admitkit/operator/access/internal/grant"

// Labels and annotations. They say what an object is for; the annotations of a
// Role are the record of what was chosen when access was granted.
const (
	// LabelManagedBy is on every object that the extension makes; its cache holds
	// no others.
	LabelManagedBy = grant.LabelManagedBy
	// LabelRequest has the name of the request.
	LabelRequest = grant.LabelRequest

	// AnnotationRequestUID has the UID of the request.
	AnnotationRequestUID = grant.AnnotationRequestUID
	// AnnotationPodUID has the UID of the Pod that was chosen or made.
	AnnotationPodUID = grant.AnnotationPodUID
	// AnnotationOnExpiry has what happens to the Pod at the end.
	AnnotationOnExpiry = grant.AnnotationOnExpiry
	// AnnotationSubjects has to whom access is granted, as JSON.
	AnnotationSubjects = grant.AnnotationSubjects
	// AnnotationTemplate on a Pod names the PodAccessTemplate by which it is
	// treated when it is created; see the README.
	AnnotationTemplate = grant.AnnotationTemplate
)
