/**
 * Return a function that returns whether the user saw this page last, of all pages of this browser with the name.
 *
 * @param name - The name of the lock that this page holds. A page that is closed leaves the lock to another one.
 * @param locks - The locks of the browser; undefined, as for pages of other hosts without TLS: each page counts.
 */
export function trackLastSeenPage(name: string, locks: LockManager | undefined): () => boolean {
  if (!locks) {
    return () => true;
  }
  // The request by which this page holds the lock: who steals from itself may lose the old lock after the new one came.
  let held: object | undefined;
  let isQueued = false;
  const request = (steal: boolean) => {
    const token = {};
    const granted = () => {
      held = token;
      isQueued &&= steal;
      return new Promise<never>(() => undefined);
    };
    const lost = () => {
      if (held === token) {
        held = undefined;
      }
      queue();
    };
    locks.request(name, { steal }, granted).catch(lost);
  };
  const queue = () => {
    if (!isQueued) {
      isQueued = true;
      request(false);
    }
  };
  const steal = () => {
    if (!held && !document.hidden) {
      request(true);
    }
  };
  document.addEventListener('visibilitychange', steal);
  window.addEventListener('focus', steal);
  if (document.hidden) {
    queue();
  }
  steal();
  return () => held !== undefined;
}
