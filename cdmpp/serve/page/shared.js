// What all views share: the server, the address, the list of devices.

import { button } from "./words.js";

const MOST_IN_ADDRESS = 16000;
export const $ = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token");
let written = "";
/** Device label -> what is known of it. */
export const registry = new Map();

export function useToken(text) {
  token = text;
  sessionStorage.setItem("token", token);
}

/** Whether links, which show no token, are answered. */
export const isOpen = () => !token;

export async function ask(path, body) {
  return answered(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }, "application/json");
}

export async function send(path, bytes) {
  return answered(path, { method: "POST", body: bytes }, "application/octet-stream");
}

async function answered(path, request, type) {
  const headers = { "Content-Type": type };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...request, headers });
  const value = await answer.json().catch(() => null);
  if (answer.status === 401) $("token").hidden = false;
  if (!answer.ok) throw new Error(value?.error?.text ?? `the server returned status ${answer.status}`);
  return value;
}

// The address: what is asked stands after #, so a link brings a view back.

export async function packed(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const small = new Uint8Array(await new Response(stream).arrayBuffer());
  if (small.length > MOST_IN_ADDRESS) return null;
  const text = btoa(Array.from(small, (byte) => String.fromCharCode(byte)).join(""));
  return text.length > MOST_IN_ADDRESS ? null : text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")));
}

/** Writes what is asked into the address; null is left out. */
export function remember(facts, isSameView = false) {
  const known = Object.entries(facts).filter(([, value]) => value !== null && value !== "");
  written = `#${new URLSearchParams(Object.fromEntries(known))}`;
  if (isSameView) history.replaceState(null, "", written);
  else if (written !== location.hash) history.pushState(null, "", written);
}

/** What a new address asks; null where it is the one that was written here. */
export function asked(isFirst) {
  if (!isFirst && written && location.hash === written) return null;
  written = location.hash;
  return new URLSearchParams(location.hash.slice(1));
}

/** Calls `read` with a file that somebody chooses, also with the same one again. */
export function onFile(id, read) {
  $(id).addEventListener("change", () => {
    const [file] = $(id).files;
    if (file) read(file).finally(() => { $(id).value = ""; });
  });
}

/** A button that copies the address of what is shown. */
export function copyLink() {
  const made = button("Copy link", async () => {
    await navigator.clipboard.writeText(location.href);
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = "Copy link"; }, 1500);
  });
  return made;
}

// Work under way, and what went wrong.

export function say(id, text, isError = false) {
  $(id).textContent = text;
  $(id).className = isError ? "error" : "";
}

/** Does work with a text beside it and a button that waits; returns whether it went well. */
export async function busy(id, text, work, button) {
  if (button) button.disabled = true;
  say(id, text);
  try {
    await work();
    say(id, "");
    return true;
  } catch (error) {
    say(id, error.message, true);
    return false;
  } finally {
    if (button) button.disabled = false;
  }
}
