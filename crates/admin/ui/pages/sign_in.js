// Asks for a key. A session cookie takes its place; the key is not kept.

import { sign_in } from "../api.js";
import { h, put } from "../dom.js";
import { notice } from "../parts.js";

export const title = () => "Sign in";

/** `done(session)` is called once. */
export function show({ root, message, done }) {
  document.title = "Sign in – Stillgate";
  const failed = h("div", { "aria-live": "polite" }, message && notice("warn", message));
  const key = h("input", {
    id: "key",
    type: "password",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "key-help",
  });
  const button = h("button", { type: "submit", class: "is-primary" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    put(failed);
    try {
      done(await sign_in({ key: key.value }));
    } catch (failure) {
      button.disabled = false;
      const why =
        failure.status === 401
          ? "Unknown key. Compare it with gateway.admin.keys; there must be no spaces around it."
          : failure.message;
      put(failed, notice("bad", why));
      key.select();
    }
  };
  put(
    root,
    h(
      "div",
      { class: "sign-in" },
      h("h1", { tabindex: "-1" }, "Sign in"),
      h(
        "p",
        { class: "lead" },
        "Live traffic, routes and their plugins, health, certificates and history of this gateway.",
      ),
      failed,
      h(
        "form",
        { onsubmit: submit },
        h("label", { for: "key" }, "Admin key"),
        key,
        h(
          "p",
          { class: "hint", id: "key-help" },
          "A key from ",
          h("code", {}, "gateway.admin.keys"),
          ", or the one that the gateway wrote to ",
          h("code", {}, "STORE.admin-key"),
          " at its first start.",
        ),
        button,
      ),
    ),
  );
  key.focus();
}
