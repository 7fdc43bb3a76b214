package recording_test

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// places are objects with secrets: SECRET is one in plain text, BASE64 one in base64.
var places = []string{
	`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"a":"BASE64","b":"BASE64","tls.key":"BASE64","c":"SECRET!"},"stringData":{"a":"SECRET","config.yaml":"user: bob\npass: SECRET","d":"SECRET"}}`,
	`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"v1\",\"data\":{\"a\":\"BASE64\",\"b\":\"BASE64\"},\"kind\":\"Secret\",\"stringData\":{\"c\":\"SECRET\"}}\n"}},"data":{}}`,
	`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"SECRET","audiences":["a"]},"status":{"user":{"extra":{"session-id":["SECRET"]}}}}`,
	`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"]},"status":{"token":"SECRET"}}`,
	env("PASSWORD"), env("PGPASSWORD"), env("DB_PASSWD"), env("PASSPHRASE"), env("DB_PWD"), env("CLIENT_SECRET"), env("SECRET_KEY_BASE"), env("GITHUB_TOKEN"), env("API_KEY"), env("APIKEY"), env("api-key"),
	env("AWS_ACCESS_KEY"), env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN"), env("PRIVATE_KEY"), env("CREDENTIALS"), env("AUTHORIZATION"), env("COOKIE"), env("SESSION_ID"), env("CONNECTION_STRING"), env("CLIENT_KEY"), env("SIGNING_KEY"), env("ENCRYPTION_KEY"), env("DSN"), env("PIN"), env("DB_PASS"), env("DB_CREDS"), env("APP_KEY"), env("AZURE_ACCOUNT_KEY"), env("JWT"),
	configMap(`".dockerconfigjson":"{\"auths\":{\"r\":{\"auth\":\"SECRET\"}}}","log":"msg=\"{\\\"password\\\":\\\"SECRET\\\"}\"","slack":"https://hooks.slack.com/services/T0/B0/SECRET","pass":"SECRET","lists.yaml":"passwords:\n- SECRET\n- SECRET\npassword:\n  SECRET\ntokens:\n  a: SECRET\n","env.yaml":"env:\n- name: TOKEN\n  value: SECRET\n","x.xml":"<db><password>SECRET</password></db>","x.rb":"token => 'SECRET'","sas":"https://a/x?sv=1&sig=SECRET","c":"Server=db;User=x;Password=SECRET;AccountKey=SECRET"`),
	custom(`"dbPass":"SECRET","auth":{"user":"bob","pass":"SECRET"},"registryAuth":{"auth":"SECRET"}`),
	container(`"env":[{"name":"DATABASE_URL","value":"postgres://bob:SECRET@db/app"},{"name":"URL","value":"https://SECRET@git.example.com/x"},{"name":"HEADER","value":"Authorization: Bearer SECRET"},{"name":"OPTS","value":"--password SECRET --user bob"},{"name":"X","value":"token=SECRET"}]`),
	container(`"env":[{"name":"JSON","value":"{\"password\": \"SECRET\", \"nested\": {\"apiKey\": \"SECRET\"}}"},{"name":"LIST","value":"[{\"name\":\"TOKEN\",\"value\":\"SECRET\"}]"}]`),
	container(`"env":[{"name":"A","value":"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SECRET"},{"name":"B","value":"ghp_0123456789abcdefghijSECRET"},{"name":"C","value":"-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----"},{"name":"D","value":"glpat-0123456789abcdefSECRET"}]`),
	container(`"command":["login","--password=SECRET","--token","SECRET","-secret","SECRET","--api-key='SECRET with blanks'"]`),
	container(`"command":["mysql","--password"],"args":["SECRET","--host","db"]`),
	container(`"command":["sh","-c","export API_KEY=SECRET; mysql --password 'SECRET x' db; curl -H 'Authorization: Basic SECRET' https://bob:SECRET@x/; TOKEN=\"$(echo SECRET)\" run"]`),
	container(`"args":["--connection=postgres://bob:SECRET@db/app","--header","Authorization: Bearer SECRET","psql","postgres://bob:p@ss(SECRET@db","PGPASSWORD=SECRET;x"]`),
	container(`"livenessProbe":{"httpGet":{"path":"/x?token=SECRET","httpHeaders":[{"name":"Authorization","value":"SECRET"},{"name":"Cookie","value":"SECRET"},{"name":"X-Api-Key","value":"SECRET"}]}},"lifecycle":{"preStop":{"exec":{"command":["curl","-H","Authorization: Bearer SECRET"]}}},"readinessProbe":{"exec":{"command":["redis-cli","--password","SECRET","ping"]}}`),
	annotations(`"token":"SECRET","example.com/password":"SECRET","vault.example.com/secret":"SECRET","x":"https://bob:SECRET@host","note":"the password: SECRET","json":"{\"token\":\"SECRET\"}","api-key":"SECRET","list":"[\"--token\",\"SECRET\"]","yaml":"a: b\npassword: SECRET\n","kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"spec\":{\"containers\":[{\"env\":[{\"name\":\"TOKEN\",\"value\":\"SECRET\"}],\"args\":[\"--password\",\"SECRET\"]}]}}"`),
	configMap(`"password":"SECRET","db.password":"SECRET","app.properties":"db.user=bob\ndb.password=SECRET\nurl=jdbc:postgres://bob:SECRET@db\n","config.json":"{\"a\":{\"clientSecret\":\"SECRET\",\"keys\":[{\"privateKey\":\"SECRET\"}]}}","config.yaml":"a: b\nauth:\n  password: SECRET\n  token: 'SECRET'\n  secret: \"SECRET\"\n","block.yaml":"a: 1\npassword: |\n  SECRET\n  SECRET\ntoken: >-\n  SECRET\n","manifest.yaml":"apiVersion: v1\nkind: ConfigMap\n---\napiVersion: v1\nkind: Secret\ndata:\n  x: BASE64\nstringData:\n  y: SECRET\n  z: |\n    SECRET\n","kubeconfig":"apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    client-key-data: SECRET\n    token: SECRET\n    password: SECRET\n","script.sh":"#!/bin/sh\nexport TOKEN=SECRET\ncurl -u bob --password SECRET\n",".npmrc":"//registry/:_authToken=SECRET\n","ini":"[db]\npassword = SECRET\n"`),
	`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"binaryData":{"a":"BASE64","b":"BASE64"}}`,
	custom(`"password":"SECRET","dbPassword":"SECRET","token":"SECRET","apiKey":"SECRET","accessKey":"SECRET","secretKey":"SECRET","clientSecret":"SECRET","privateKey":"SECRET","credentials":{"user":"SECRET","pass":"SECRET","key":"SECRET","nested":{"deep":"SECRET"}},"passwords":["SECRET","SECRET"],"tokens":[{"value":"SECRET"},{"id":"SECRET"}],"auth":{"basic":{"password":"SECRET"},"bearerToken":"SECRET"},"headers":{"Authorization":"SECRET","Cookie":"SECRET","X":"Bearer SECRET"},"url":"https://bob:SECRET@host/","connectionString":"SECRET","secret":"SECRET","passphrase":"SECRET"`),
	custom(`"parameters":[{"name":"password","value":"SECRET"},{"key":"token","value":"SECRET"},{"header":"Authorization","values":["SECRET","SECRET"]},{"name":"credentials","value":{"a":"SECRET","b":["SECRET"]}}],"template":{"apiVersion":"v1","kind":"Secret","data":{"a":"BASE64"},"stringData":{"b":"SECRET"}},"secretTemplate":{"data":{"x":"SECRET"}},"values":"image: x\npassword: SECRET\nauth: {token: SECRET}\n","script":"mysql -pX --password=SECRET\n"`),
	`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"template":{"metadata":{"annotations":{"token":"SECRET"}},"spec":{"initContainers":[{"name":"i","env":[{"name":"TOKEN","value":"SECRET"}],"args":["--token=SECRET"]}],"containers":[{"name":"c","env":[{"name":"TOKEN","value":"SECRET"}],"command":["x","--password","SECRET"]}],"ephemeralContainers":[{"name":"e","env":[{"name":"TOKEN","value":"SECRET"}]}]}}}}`,
	`{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"a"},"spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"c","env":[{"name":"TOKEN","value":"SECRET"}],"args":["--password","SECRET"]}]}}}}}}`,
	`{"apiVersion":"v1","kind":"PodExecOptions","command":["mysql","--password=SECRET","--token","SECRET"],"container":"c"}`,
	`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"a"},"spec":{"csi":{"volumeAttributes":{"password":"SECRET","token":"SECRET","url":"https://bob:SECRET@nas/"}},"flexVolume":{"options":{"secret":"SECRET"}}}}`,
	`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a.json":"[{\"kind\":\"Secret\",\"data\":{\"a\":\"BASE64\"}},{\"text\":\"{\\\"password\\\":\\\"SECRET\\\"}\"}]","b":"Cookie: a=b; session_id=SECRET","c":"docker login -u bob -p x --password SECRET","d":"Set-Cookie: SECRET; Secure"}}`,
	`{"apiVersion":"example.com/v1","kind":"Secret","data":{"plain":"SECRET-","nested":{"a":"SECRET","b":["SECRET"]}},"spec":{"password":"SECRET"}}`,
	custom(`"notes":"curl -H \"Authorization: Bearer SECRET\" https://x/?api_key=SECRET&a=b","list":["--token=SECRET","https://bob:SECRET@x","--password","SECRET"],"map":{"a.b/private-key":"SECRET","aws_access_key_id":"SECRET"},"pem":"-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----\n","key":"AKIAABCDEFGHIJKLMNOP","slack":"xoxb-123456789012-SECRET"`),
	`{"apiVersion":"v1","kind":"PodProxyOptions","path":"/x?access_token=SECRET"}`,
	`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Secret","data":{"a":"BASE64"}},{"apiVersion":"v1","kind":"Secret","stringData":{"a":"SECRET"}}]}`,
	configMap(`"a.json":"{\"kind\":\"SecretList\",\"items\":[{\"data\":{\"a\":\"BASE64\"}},{\"stringData\":{\"b\":\"SECRET\"}}]}","b.yaml":"kind: SecretList\nitems:\n- data: {a: BASE64}\n","c.json":"{\"kind\":\"Secret\",\"data\":{\"a\":\"BASE64\"}}\n{\"kind\": \"Secret\",\"data\":{\"a\":\"BASE64\"}}\n","d":"{kind: Secret, data: {a: BASE64}}","e":"applied {x} {\"kind\":\"Secret\",\"data\":{\"a\":\"BASE64\"}} at token=SECRET","f":"kind: ConfigMapList\nitems:\n- binaryData: {a: BASE64}\n"`),
	custom(`"list":{"kind":"SecretList","items":[{"data":{"a":"BASE64"}}]},"xml":"<add key=\"password\" value=\"SECRET\"/><db:token a=\"b\">SECRET</db:token>","dsn":"bob:SECRET@tcp(db:3306)/app","make":"TOKEN ?= SECRET\n"`),
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a","annotations":{"x":"token=SECRET"}},"spec":{"versions":[{"schema":{"openAPIV3Schema":{"properties":{"password":{"type":"string"}}}}}]}}`,
}

func env(name string) string {
	return container(`"env":[{"name":"` + name + `","value":"SECRET"},{"name":"OTHER","value":"fine"},{"name":"` + name + `_2","value":"SECRET and $(more) "}]`)
}

func container(fields string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"apps"},"spec":{"containers":[{"name":"c","image":"ghcr.io/acme/token-service:v1",` + fields + `}]}}`
}

func annotations(list string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{` + list + `}},"spec":{"containers":[]}}`
}

func configMap(data string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{` + data + `}}`
}

func custom(spec string) string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{` + spec + `}}`
}

// planted returns the places with a secret of its own in each, and the secrets.
func planted() (objects, secrets []string) {
	next := func() string {
		secrets = append(secrets, fmt.Sprintf("s3cr3tX%03dq", len(secrets)))
		return secrets[len(secrets)-1]
	}
	for _, object := range places {
		for strings.Contains(object, "SECRET") {
			at := strings.Index(object, "SECRET")
			if partOfName(object, at) {
				object = object[:at] + "S\x00" + object[at+2:]
				continue
			}
			object = object[:at] + next() + object[at+len("SECRET"):]
		}
		for strings.Contains(object, "BASE64") {
			object = strings.Replace(object, "BASE64", base64.StdEncoding.EncodeToString([]byte(next())), 1)
		}
		objects = append(objects, strings.ReplaceAll(object, "S\x00", "SE"))
	}
	return objects, secrets
}

// partOfName reports whether a SECRET is a part of the name of a variable.
func partOfName(object string, at int) bool {
	for _, name := range []string{"CLIENT_SECRET", "SECRET_KEY_BASE", "AWS_SECRET_ACCESS_KEY"} {
		if i := strings.Index(name, "SECRET"); at >= i && strings.HasPrefix(object[at-i:], name) {
			return true
		}
	}
	return false
}
