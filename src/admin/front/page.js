
"use strict";
(() => {
  // Without this the page loads itself anew; with it only what has changed is changed.
  const PERIOD = 2000, PATIENCE = 5000;
  const page = document.getElementById("page");
  const silence = document.getElementById("silence");
  let timer = 0, busy = false, heard = Date.now();

  const merge = (old, fresh) => {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(document.importNode(fresh, true));
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    } else if (old.id !== "pace") {
      for (const { name } of [...old.attributes])
        if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
      for (const { name, value } of fresh.attributes)
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      children(old, fresh);
    }
  };
  const children = (old, fresh) => {
    const news = [...fresh.childNodes];
    while (old.childNodes.length > news.length) old.lastChild.remove();
    news.forEach((node, place) => {
      const there = old.childNodes[place];
      if (there) merge(there, node);
      else old.append(document.importNode(node, true));
    });
  };
  const say = (element, words) => {
    if (element && element.textContent !== words) element.textContent = words;
  };
  const fail = (why) => {
    const seconds = Math.round((Date.now() - heard) / 1000);
    say(silence, `✖ ${why} What stands below is ${seconds} s old.`);
    silence.hidden = false;
    page.classList.add("old");
    document.title = "✖ no answer – tidegate";
  };
  const look = async () => {
    if (busy || document.hidden) return;
    busy = true;
    clearTimeout(timer);
    const stop = new AbortController();
    const late = setTimeout(() => stop.abort(), PATIENCE);
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: stop.signal });
      // Its style would be one more, with a nonce that this page does not know: there is one already.
      const text = (await answer.text()).replace(/<style[^]*?<\/style>/, "");
      const told = new DOMParser().parseFromString(text, "text/html");
      const fresh = told.getElementById("page");
      if (!answer.ok || !fresh) {
        const why = told.getElementById("why");
        fail(why ? why.textContent : "This is no longer a tidegate.");
      } else {
        heard = Date.now();
        silence.hidden = true;
        page.classList.remove("old");
        merge(page, fresh);
        document.title = told.title;
        const icon = told.getElementById("icon");
        if (icon) document.getElementById("icon").href = icon.href;
      }
    } catch {
      fail("Nobody answers here any more: has the daemon, or tidegate dashboard, ended?");
    } finally {
      clearTimeout(late);
      busy = false;
      if (!document.hidden) timer = setTimeout(look, PERIOD);
    }
  };
  say(document.getElementById("pace"), "looking every 2 s");
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    say(document.getElementById("pace"), document.hidden ? "paused" : "looking every 2 s");
    look();
  });
  timer = setTimeout(look, PERIOD);
})();
