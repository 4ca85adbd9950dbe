/** What is looked at in a dashboard is told by the query of its address. */

/** Return the address of what is looked at. */
export function addressOf(url: string, view: string, theme: 'light' | 'dark'): string {
  const query = new URLSearchParams(view);
  query.set('theme', theme);
  return `${url}?${query.toString()}`;
}

/** Return the title of the page that is looked at. */
export function titleOf(view: string): string {
  const page = new URLSearchParams(view).get('page') ?? 'overview';
  return page.charAt(0).toUpperCase() + page.slice(1);
}

/** Return what is looked at without the moment: another cluster has no such moment, nor has another day. */
export function withoutMoment(view: string): string {
  const query = new URLSearchParams(view);
  query.delete('until');
  return query.toString();
}
