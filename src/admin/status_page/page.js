"use strict";
(() => {
  // Without this the page loads itself anew; with it only changes are applied.
  const PERIOD = 2000, PATIENCE = 5000;
  const [page, silence, pace] = ["page", "silence", "pace"].map((id) => document.getElementById(id));
  let timer = 0, busy = false, heard = Date.now();

  const merge = (old, fresh) => {
    if (old.nodeName !== fresh.nodeName) return old.replaceWith(document.importNode(fresh, true));
    if (old.nodeType !== Node.ELEMENT_NODE) return say(old, fresh.nodeValue);
    if (old === pace) return;
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const news = [...fresh.childNodes];
    while (old.childNodes.length > news.length) old.lastChild.remove();
    news.forEach((node, place) => {
      if (place < old.childNodes.length) merge(old.childNodes[place], node);
      else old.append(document.importNode(node, true));
    });
  };
  const say = (node, words) => {
    if (node.textContent !== words) node.textContent = words;
  };
  const fail = (why) => {
    say(silence, `✖ ${why} The page below is ${Math.round((Date.now() - heard) / 1000)} s old.`);
    silence.hidden = false;
    page.classList.add("old");
    document.title = "✖ no answer – tidegate";
  };
  const look = async () => {
    if (busy || document.hidden) return;
    busy = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      // A second style, with a nonce that this page does not know, would be refused.
      const text = (await answer.text()).replace(/<style[^]*?<\/style>/, "");
      const told = new DOMParser().parseFromString(text, "text/html");
      const fresh = told.getElementById("page");
      if (answer.ok && fresh) {
        heard = Date.now();
        silence.hidden = true;
        page.classList.remove("old");
        merge(page, fresh);
        document.title = told.title;
        document.getElementById("icon").href = told.getElementById("icon").href;
      } else {
        fail(told.getElementById("why")?.textContent ?? "This is no longer a tidegate.");
      }
    } catch {
      fail("No answer any more: has the daemon, or tidegate dashboard, ended?");
    }
    busy = false;
    if (!document.hidden) timer = setTimeout(look, PERIOD);
  };
  const resume = () => {
    clearTimeout(timer);
    say(pace, document.hidden ? "paused" : "looking every 2 s");
    look();
  };
  document.addEventListener("visibilitychange", resume);
  say(pace, "looking every 2 s");
  timer = setTimeout(look, PERIOD);
})();
