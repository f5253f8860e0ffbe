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
      const wait =
        failure.status === 429
          ? "Too many wrong keys from this address. Wait, then try again."
          : failure.status === 401
            ? "This key is not known. Check it against gateway.admin.keys; nothing may stand before or after it."
            : failure.message;
      put(failed, notice("bad", wait));
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
          "A key of ",
          h("code", {}, "gateway.admin.keys"),
          ", or the one that the gateway wrote beside its store at the first start.",
        ),
        button,
      ),
    ),
  );
  key.focus();
}
