package controller

parent(status) = {
	"apiVersion": "example.com/v1",
	"kind": "TransientRoleBinding",
	"metadata": {"name": "oncall", "namespace": "apps"},
	"validFrom": "2026-11-23T12:00:00Z",
	"validUntil": "2026-11-23T13:00:00Z",
	"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
	"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edit"},
	"status": status,
}

request(parent, bindings) = {
	"controller": {"spec": {"childResources": [{"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "rolebindings"}]}},
	"parent": parent,
	"children": {"RoleBinding.rbac.authorization.k8s.io/v1": bindings},
	"finalizing": false,
}

at(text) = time.parse_rfc3339_ns(text)

bound := {"oncall": {"kind": "RoleBinding"}}

test_nothing_before_the_window {
	count(children) == 0 with input as request(parent({}), {}) with time.now_ns as at("2026-11-23T11:59:59Z")
}

test_nothing_at_the_very_start {
	count(children) == 0 with input as request(parent({}), {}) with time.now_ns as at("2026-11-23T12:00:00Z")
}

test_one_binding_within {
	children[binding] with input as request(parent({}), {}) with time.now_ns as at("2026-11-23T12:30:00Z")
	binding.kind == "RoleBinding"
	binding.apiVersion == "rbac.authorization.k8s.io/v1"
	binding.metadata.name == "oncall"
	binding.subjects[0].name == "jane"
	binding.roleRef.name == "edit"
}

test_the_binding_goes_without_this_policy {
	got := validUntil with input as request(parent({}), {}) with time.now_ns as at("2026-11-23T12:30:00Z")
	got == "2026-11-23T13:00:00Z"
}

test_nothing_at_the_very_end {
	count(children) == 0 with input as request(parent({}), bound) with time.now_ns as at("2026-11-23T13:00:00Z")
}

test_nothing_without_an_end {
	endless := object.remove(parent({}), ["validUntil"])
	count(children) == 0 with input as request(endless, {}) with time.now_ns as at("2026-11-23T12:30:00Z")
}

test_nothing_with_an_end_that_is_no_time {
	wrong := object.union(parent({}), {"validUntil": "tomorrow"})
	count(children) == 0 with input as request(wrong, {}) with time.now_ns as at("2026-11-23T12:30:00Z")
}

test_no_condition_before_the_first_binding {
	conditions == [] with input as request(parent({}), {}) with time.now_ns as at("2026-11-23T11:00:00Z")
}

test_a_condition_when_the_binding_is_there {
	got := conditions with input as request(parent({}), bound) with time.now_ns as at("2026-11-23T12:30:05Z")
	got == [{
		"type": "Effective", "status": "True", "reason": "Created",
		"message": "RoleBinding Created", "lastTransitionTime": "2026-11-23T12:30:05Z",
	}]
}

test_the_same_condition_stays {
	before := [{"type": "Effective", "status": "True", "reason": "Created"}]
	got := conditions with input as request(parent({"conditions": before}), bound) with time.now_ns as at("2026-11-23T12:40:00Z")
	got == before
}

test_the_newest_condition_is_the_first {
	before := [{"type": "Effective", "status": "True", "reason": "Created"}]
	got := conditions with input as request(parent({"conditions": before}), {}) with time.now_ns as at("2026-11-23T13:00:01Z")
	count(got) == 2
	got[0].status == "False"
	got[0].reason == "Removed"
	got[1] == before[0]
}

test_the_kind_is_that_of_the_child {
	cluster := object.union(request(parent({}), {}), {"children": null})
	as_cluster := object.union(cluster, {"children": {"ClusterRoleBinding.rbac.authorization.k8s.io/v1": {}}})
	children[binding] with input as as_cluster with time.now_ns as at("2026-11-23T12:30:00Z")
	binding.kind == "ClusterRoleBinding"
}
