package extension

// Labels of the Pods that Eirini runs, with EiriniX's names. EiriniX's option
// FilterEiriniApps, which was on by default, selected Pods with the LabelSourceType APP.
const (
	LabelGUID        = "cloudfoundry.org/guid"
	LabelVersion     = "cloudfoundry.org/version"
	LabelAppGUID     = "cloudfoundry.org/app_guid"
	LabelProcessType = "cloudfoundry.org/process_type"
	LabelSourceType  = "cloudfoundry.org/source_type"
)
