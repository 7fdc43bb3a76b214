# A binding that exists only between two times, as a hook of a CompositeController.
# It is written for OPA below 1.0 (version: v0), as the policy is that this example follows.
package controller

# The response: the binding while the window is open, and none otherwise.
children[binding] {
	window_is_open
	binding := {
		"apiVersion": input.controller.spec.childResources[0].apiVersion,
		"kind": child_kind,
		"metadata": {"name": input.parent.metadata.name},
		"roleRef": input.parent.roleRef,
		"subjects": input.parent.subjects,
	}
}

# The binding goes then, even if nobody can ask this policy.
validUntil = input.parent.validUntil { window_is_open }

status := {"conditions": conditions}

# The kind is that of the one type of child: the key is Kind.group/version.
child_kind := kind {
	input.children[key]
	kind := split(key, ".")[0]
}

# A time that is missing or no time leaves the rule undefined, and nothing is bound.
window_is_open {
	now := time.now_ns()
	time.parse_rfc3339_ns(input.parent.validFrom) < now
	now < time.parse_rfc3339_ns(input.parent.validUntil)
}

# The binding is in effect when the cluster has it, not as soon as it is wanted.
exists {
	count(input.children[_]) > 0
}

effective = "True" { exists }

effective = "False" { not exists }

stored := object.get(object.get(input.parent, "status", {}), "conditions", [])

# What has never been in effect has no condition yet, and what did not change keeps those it has.
conditions = stored { not flipped }

conditions = array.concat([condition], stored) { flipped }

flipped {
	count(stored) == 0
	exists
}

flipped {
	count(stored) > 0
	stored[0].status != effective
}

condition := {
	"type": "Effective",
	"status": effective,
	"reason": reason,
	"message": sprintf("%s %s", [child_kind, reason]),
	"lastTransitionTime": timestamp(time.now_ns()),
}

reason = "Created" { exists }

reason = "Removed" { not exists }

# RFC 3339 in UTC, to the second.
timestamp(ns) = text {
	[year, month, day] := time.date(ns)
	[hour, minute, second] := time.clock(ns)
	text := concat("T", [
		sprintf("%d-%02d-%02d", [year, month, day]),
		sprintf("%02d:%02d:%02dZ", [hour, minute, second]),
	])
}
