/**
 * Return a function that returns whether the user has seen this page last, of all pages of this browser with the name.
 *
 * @param name - The name of the lock that this page holds. A page that is closed leaves the lock to another one.
 * @param locks - The locks of the browser; undefined, as for pages of other hosts without TLS: each page counts.
 */
export function lastSeen(name: string, locks: LockManager | undefined): () => boolean {
  if (!locks) {
    return () => true;
  }
  let isHeld = false;
  let isQueued = false;
  const hold = () => {
    isHeld = true;
    return new Promise<never>(() => undefined);
  };
  const queue = () => {
    isHeld = false;
    if (!isQueued) {
      isQueued = true;
      const granted = () => {
        isQueued = false;
        return hold();
      };
      locks.request(name, granted).catch(queue);
    }
  };
  const steal = () => {
    if (!isHeld && !document.hidden) {
      locks.request(name, { steal: true }, hold).catch(queue);
    }
  };
  document.addEventListener('visibilitychange', steal);
  window.addEventListener('focus', steal);
  if (document.hidden) {
    queue();
  }
  steal();
  return () => isHeld;
}
