// A Vault server for tests: HashiCorp's own core, HTTP API, key-value engines, and methods AppRole and Kubernetes, with secrets in files.
//
// The whole program, of two thousand packages, takes half an hour of CPU to build; most of them are plugins for clouds and databases.
//
//	vault ADDRESS FOLDER
package main

import (
	"log"
	"net"
	"net/http"
	"os"

	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/helper/logging"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/file"
	"github.com/hashicorp/vault/vault"

	hclog "github.com/hashicorp/go-hclog"
)

var (
	engines = map[string]logical.Factory{"kv": kv.Factory}
	methods = map[string]logical.Factory{"approle": approle.Factory, "kubernetes": kubernetes.Factory}
)

// builtin are the plugins that are part of this program.
type builtin struct{}

func (builtin) Get(name string, kind consts.PluginType) (func() (interface{}, error), bool) {
	factories := map[consts.PluginType]map[string]logical.Factory{
		consts.PluginTypeSecrets:    engines,
		consts.PluginTypeCredential: methods,
	}
	factory, isKnown := factories[kind][name]
	return func() (interface{}, error) { return factory, nil }, isKnown
}

func (b builtin) Contains(name string, kind consts.PluginType) bool {
	_, isKnown := b.Get(name, kind)
	return isKnown
}

func (builtin) Keys(consts.PluginType) []string { return nil }

func (b builtin) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, b.Contains(name, kind)
}

func run(address, folder string) error {
	logger := logging.NewVaultLogger(hclog.Debug)
	storage, err := file.NewFileBackend(map[string]string{"path": folder}, logger)
	if err != nil {
		return err
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           storage,
		StorageType:        "file",
		LogicalBackends:    engines,
		CredentialBackends: methods,
		BuiltinRegistry:    builtin{},
		RedirectAddr:       "http://" + address,
		DisableMlock:       true,
		Logger:             logger,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	properties := vault.HandlerProperties{
		Core: core,
		// Clients that forget `X-Vault-Request` are refused.
		ListenerConfig: &configutil.Listener{Address: address, RequireRequestHeader: true},
	}
	return http.Serve(listener, vaulthttp.Handler.Handler(&properties))
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: vault ADDRESS FOLDER")
	}
	log.Fatal(run(os.Args[1], os.Args[2]))
}
