-- Nexmark's queries in Flink SQL, for the comparison. q6 is missing: Flink's OVER window does not accept retractions.

-- view in_time
select a.id, a.seller, a.category, b.bidder, b.price, b.date_time
from auction a join bid b on a.id = b.auction
where b.date_time between a.date_time and a.expires

-- view hop_counts
select auction, count(*) as num, window_start, window_end
from table(hop(table bid, descriptor(date_time), interval '2' second, interval '10' second))
group by auction, window_start, window_end

-- view ranked
select *, date_format(date_time, 'yyyy-MM-dd') as dt,
    case when price < 10000 then 1 when price < 1000000 then 2 else 3 end as r
from bid

-- view bid_now
select *, proctime() as p_time from bid

-- q0
select auction, bidder, price, date_time, extra from bid

-- q1
select auction, bidder, 0.908 * price, date_time, extra from bid

-- q2
select auction, price from bid where mod(auction, 123) = 0

-- q3
select p.name, p.city, p.state, a.id
from auction a join person p on a.seller = p.id
where a.category = 10 and p.state in ('OR', 'ID', 'CA')

-- q4
select category, avg(final)
from (select max(price) as final, category from in_time group by id, category)
group by category

-- q5
select a.auction, a.num
from hop_counts a join (
    select max(num) as most, window_start, window_end from hop_counts group by window_start, window_end
) m on a.window_start = m.window_start and a.window_end = m.window_end and a.num >= m.most

-- q7
select b.auction, b.price, b.bidder, b.date_time, b.extra
from bid b join (
    select max(price) as most, window_end as ended
    from table(tumble(table bid, descriptor(date_time), interval '10' second))
    group by window_start, window_end
) m on b.price = m.most
where b.date_time between m.ended - interval '10' second and m.ended

-- q8
select p.id, p.name, p.window_start
from (
    select id, name, window_start, window_end
    from table(tumble(table person, descriptor(date_time), interval '10' second))
    group by id, name, window_start, window_end
) p join (
    select seller, window_start, window_end
    from table(tumble(table auction, descriptor(date_time), interval '10' second))
    group by seller, window_start, window_end
) a on p.id = a.seller and p.window_start = a.window_start and p.window_end = a.window_end

-- q9
select id, seller, category, bidder, price, date_time
from (select *, row_number() over (partition by id order by price desc, date_time) as n from in_time)
where n <= 1

-- q10
select auction, bidder, price, date_time, extra,
    date_format(date_time, 'yyyy-MM-dd'), date_format(date_time, 'HH:mm')
from bid

-- q11
select bidder, count(*), window_start, window_end
from table(session(table bid partition by bidder, descriptor(date_time), interval '10' second))
group by bidder, window_start, window_end

-- q12
select bidder, count(*), window_start, window_end
from table(tumble(table bid_now, descriptor(p_time), interval '10' second))
group by bidder, window_start, window_end

-- q13
select b.auction, b.bidder, b.price, b.date_time, s.`value`
from bid b join side_input s on mod(b.auction, 10000) = s.key

-- q14
select auction, bidder, 0.908 * price,
    case
        when hour(date_time) between 8 and 18 then 'dayTime'
        when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime'
        else 'otherTime'
    end,
    date_time, extra, char_length(extra) - char_length(replace(extra, 'c', ''))
from bid
where 0.908 * price > 1000000 and 0.908 * price < 50000000

-- q15
select dt,
    count(*), count(*) filter (where r = 1), count(*) filter (where r = 2), count(*) filter (where r = 3),
    count(distinct bidder), count(distinct bidder) filter (where r = 1),
    count(distinct bidder) filter (where r = 2), count(distinct bidder) filter (where r = 3),
    count(distinct auction), count(distinct auction) filter (where r = 1),
    count(distinct auction) filter (where r = 2), count(distinct auction) filter (where r = 3)
from ranked
group by dt

-- q16
select channel, dt, max(date_format(date_time, 'HH:mm')),
    count(*), count(*) filter (where r = 1), count(*) filter (where r = 2), count(*) filter (where r = 3),
    count(distinct bidder), count(distinct bidder) filter (where r = 1),
    count(distinct bidder) filter (where r = 2), count(distinct bidder) filter (where r = 3),
    count(distinct auction), count(distinct auction) filter (where r = 1),
    count(distinct auction) filter (where r = 2), count(distinct auction) filter (where r = 3)
from ranked
group by channel, dt

-- q17
select auction, dt,
    count(*), count(*) filter (where r = 1), count(*) filter (where r = 2), count(*) filter (where r = 3),
    min(price), max(price), avg(price), sum(price)
from ranked
group by auction, dt

-- q18
select auction, bidder, price, channel, url, date_time, extra
from (select *, row_number() over (partition by bidder, auction order by date_time desc) as n from bid)
where n <= 1

-- q19
select * from (select *, row_number() over (partition by auction order by price desc) as n from bid) where n <= 10

-- q20
select b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category, a.extra
from bid b join auction a on b.auction = a.id
where a.category = 10

-- q21
select auction, bidder, price, channel, case lower(channel)
    when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
    else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end
from bid
where regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) is not null
    or lower(channel) in ('apple', 'google', 'facebook', 'baidu')

-- q22
select auction, bidder, price, channel, split_index(url, '/', 3), split_index(url, '/', 4), split_index(url, '/', 5)
from bid
